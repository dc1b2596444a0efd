"""All facts enter here: from agents, launchers, training processes and the cluster; acknowledged once stored."""
