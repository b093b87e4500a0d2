"""Files of many requests, one a line, and files of their answers, in OpenAI's batch format."""
