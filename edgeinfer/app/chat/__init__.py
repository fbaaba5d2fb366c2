"""A chat, whatever shows it: attachments, commands, the context, line mode."""
