"""Jobs of Volcano as a kind of job: their sizes suspend them, in one write that uses up none of their retries."""
