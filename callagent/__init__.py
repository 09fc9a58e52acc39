"""callagent: a self-hosted phone server for voice agents."""

__version__ = "0.1.0"
