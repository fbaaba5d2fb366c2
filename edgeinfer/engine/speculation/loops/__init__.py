"""Hot loops of speculation, compiled like kernels: functions of int64s that neither raise nor allocate."""
