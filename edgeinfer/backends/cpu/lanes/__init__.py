"""Models compiled for the CPU: whole, in sections beside other devices, or streamed because they exceed memory."""
