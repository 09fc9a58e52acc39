from _gen import *  # <AUTO GENERATED>
import socket


@func_description("One of the zoo.")
def blocks_on_a_socket(conv: Conversation):
    listener = socket.create_server(("127.0.0.1", 0))
    listener.accept()
