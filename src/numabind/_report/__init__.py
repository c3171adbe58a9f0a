"""The formatters: what a person sees."""
