"""Several machines through Ray: connect to a cluster, encode images on it. Needs `phpq[ray]`."""
