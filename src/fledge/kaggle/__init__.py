"""A recipe, its text and fledge itself as one folder, and the notebook that trains it offline."""
