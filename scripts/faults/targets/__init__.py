"""What is killed and stopped, a file each."""
