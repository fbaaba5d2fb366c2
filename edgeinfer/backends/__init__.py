"""HOW ops run on one device."""

from edgeinfer.privacy import refuse_telemetry

refuse_telemetry()  # here, because no device's package can be imported without passing this line
