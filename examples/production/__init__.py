"""A service as it is deployed: web, worker and relay apart, with the files of Docker, systemd and Kubernetes."""
