"""Hot loops of speculation, compiled as kernels are: functions of int64s that neither raise nor allocate."""
