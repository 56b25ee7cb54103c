"""What plans trials and has worker processes run them; where that takes place."""
