"""What all supervisors of a cluster sign and serve with, made once by whichever of them comes first."""
