"""The commands, a module for each group: its arguments, and what it calls. Nothing heavy is imported before it runs."""
