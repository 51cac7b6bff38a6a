"""Pure, synchronous domain logic: time, ids and randomness are arguments."""
