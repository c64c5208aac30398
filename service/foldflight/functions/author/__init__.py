"""What an author's decorators make of a class: the function, its signature and its binding to the types of one call."""
