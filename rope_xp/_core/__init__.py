"""The ground: errors, plain numbers, the data of a call, and what libraries and paths are asked."""
