"""The node agent: polls the sources of reclaim notices for this node and reports them to the supervisor."""
