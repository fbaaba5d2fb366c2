"""Measuring this machine: rates of devices, memory and disk, as a `scheduling.machine.profile.Profile`."""
