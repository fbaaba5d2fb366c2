"""Many computers: batches and servers on Ray. Needs the extra `ray`; nothing else imports this."""
