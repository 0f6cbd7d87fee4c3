"""Pictures: where they come from, how they are kept, and how a batch of views is made from them."""
