"""What a program's layers keep between calls: rows of keys and values, pages of them, and states."""
