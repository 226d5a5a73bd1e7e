"""What every part of podbridge shares: the vocabulary, and one package for each outside system."""

__version__ = "0.1.0"
