"""What a new draft starts from: another draft, the target's own layers, bigrams, the mask token."""
