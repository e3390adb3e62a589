"""Synthetic plumage: stylised birds whose species differ only in small local marks."""
