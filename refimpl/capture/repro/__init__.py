"""What is done for a graph whose backend fails: a script is written that shows the failure, and graphs are made smaller."""
