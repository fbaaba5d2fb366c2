"""What is known of this machine while models run: its profiles, its power, how busy it is, what answers took."""
