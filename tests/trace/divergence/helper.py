"""A module of the user's with branches of its own."""


def is_large(loss):
    if loss > 1:  # helper
        return True
    return False


def reduce_if(loss, reduce):
    if loss > 1:
        reduce()
