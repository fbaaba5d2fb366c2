"""The server as a service of the user's own login session: systemd, launchd, the Windows task scheduler."""
