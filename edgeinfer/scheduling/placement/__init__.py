"""Where stages run on a machine with several devices, chosen by predicted seconds."""
