"""The symbolic domain: interprets frames whose values stand for what is not known yet."""
