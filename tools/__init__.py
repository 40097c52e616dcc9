"""Scripts of the project: figures of its structure, and the pictures of its pages."""
