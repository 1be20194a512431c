"""How a command reaches a host: here, or by way of something that carries it there."""
