"""The process and its packages: messages, optional packages, what runs after an import and at exit."""
