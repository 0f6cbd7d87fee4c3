"""Encoders for other tools: a folder that their own libraries load, checked before it is called done."""
