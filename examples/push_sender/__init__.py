"""Push notifications for users who fell silent, by signed webhooks."""
