"""Does speculative decoding make your LLM server faster, why, and what to switch on."""

__version__ = "0.1.0"
