"""How ops run on each device."""

from edgeinfer.process import refuse_telemetry

refuse_telemetry()  # done here because no device's package can be imported without passing this line
