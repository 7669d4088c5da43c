"""What trains policies here: the built-in tiny model, its warm start, and the trainers."""
