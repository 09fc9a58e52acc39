"""What strangers may send, fed to what reads it: `python -m fuzz sip --seconds 60` (extra `fuzz`)."""
