"""Texts over HTTP: the routes of OpenAI's and of Ollama's API that write."""
