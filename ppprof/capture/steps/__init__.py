"""What is known of every step, recorded or not: times, sizes, scalars, the table of them."""
