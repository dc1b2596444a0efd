"""Jobs of Volcano (batch.volcano.sh). A size of 0 suspends them, in one write that uses up none of their retries."""
