"""Model versions, artifacts, routes and worker assignment."""
