def cannot_be_parsed(conv:
