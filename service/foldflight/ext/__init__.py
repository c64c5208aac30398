"""Extensions: the rooms that the core runs without. `foldflight.extensions` loads them; nothing else imports them."""
