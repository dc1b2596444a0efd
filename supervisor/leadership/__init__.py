"""Who of several supervisors on one cluster leads: takes streams, decides and acts."""
