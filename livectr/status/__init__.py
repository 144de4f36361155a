"""`livectr status`: figures of all processes of a run, from the places where they are already."""
