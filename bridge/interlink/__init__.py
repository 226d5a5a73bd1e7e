"""The vocabulary of interLink's REST API, for its server and its clients. It knows no transport."""
